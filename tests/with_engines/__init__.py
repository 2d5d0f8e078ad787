"""What needs TorchRec, Ray or Redis: `make test-engines` installs them and runs these tests."""
