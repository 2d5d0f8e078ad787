"""How fast the service is: a real `limerank serve`, and load from another process that does not wait for answers."""
