"""The running process: sockets, signals, the end of it, and several processes on one socket."""
