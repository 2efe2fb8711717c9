// Intentionally empty: only the name of the resulting library matters (stand_in.h).
