// Nothing: a library of this has a name and no more (stand_in.h).
