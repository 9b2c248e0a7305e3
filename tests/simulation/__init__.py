"""The simulation: the real coordinator in virtual time against worlds that fail, and the search over fault schedules."""
