"""What people look at: users and items as they are typed, a user's events, links, two bundles."""
