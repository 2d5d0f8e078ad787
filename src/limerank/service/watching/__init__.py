"""What just happened, for people who look at the service now; Prometheus has what happened since it began."""
