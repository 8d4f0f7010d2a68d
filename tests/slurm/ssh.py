class SSH: pass
