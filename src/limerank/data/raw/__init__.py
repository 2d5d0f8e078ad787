"""Raw logs: where events come from, and their values checked one by one."""
