"""Small programs that show the numbers of a compiler model, compiled for devices not there."""
