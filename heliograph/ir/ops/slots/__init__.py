"""Operations on slots, and the rules that they share."""
