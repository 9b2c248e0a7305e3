"""The simulation: the real coordinator in virtual time against backends that fail; a search over fault schedules."""
