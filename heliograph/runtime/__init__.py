"""Execution of compiled programs: the simulator and OpenFHE behind one protocol, client and server."""
