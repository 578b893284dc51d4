"""What Shardy makes of shardings and constraints put into a program."""
