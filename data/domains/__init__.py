"""The databases of the embedded data set, and which of them training never sees."""

from data.domains.culture import CINEMA, LIBRARY, MUSIC
from data.domains.heldout import GYM, MUSEUM
from data.domains.leisure import FOOTBALL, ZOO
from data.domains.services import CLINIC, SCHOOL
from data.domains.trade import FARM, HOTEL, SHOP

TRAINING = (LIBRARY, MUSIC, CINEMA, SCHOOL, CLINIC, SHOP, HOTEL, FARM, FOOTBALL, ZOO)
HELD_OUT = (MUSEUM, GYM)
