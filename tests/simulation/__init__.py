"""The simulation: the real coordinator in virtual time against worlds that fail; a search over fault schedules."""
