"""A log that several processes write to. A map of its files:

opening      the first process recovers the log, later ones join
turn         one process at a time changes anything; a turn begins with catch_up and ends with telling
catch_up     applies what other processes did; recovers the log if one of them died in its turn, or left
telling      stores the ends in the record that all of them map (``engine.others``, ``state.shared_slot``)
durability   syncs by name, and after the turn
"""
