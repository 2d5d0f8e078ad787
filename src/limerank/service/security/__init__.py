"""Who may do what: keys, and the gate that asks for them."""
