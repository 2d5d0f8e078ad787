"""One store under load: who owns it, which bundles it serves, and how they are exchanged while requests run."""
