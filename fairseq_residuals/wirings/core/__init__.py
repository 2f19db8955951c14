"""The abstraction and what every wiring is made of; torch alone."""
