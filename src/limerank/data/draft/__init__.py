"""Everything behind `limerank init`: a description drafted from the files themselves."""
