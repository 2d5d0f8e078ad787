"""Why a ranking is what it is: by links, in numbers that add up."""
