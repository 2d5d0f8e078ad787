"""Linear attention at equal rank: how near its weights come to the skyline's, what it costs, and the page of both."""
