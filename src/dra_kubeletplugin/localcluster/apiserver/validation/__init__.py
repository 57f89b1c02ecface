"""What the server fills in and refuses, by kind."""
