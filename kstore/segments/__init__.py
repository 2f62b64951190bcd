"""The parts of a segment, one file each; ``kstore.segment`` puts them together."""
