def install_adapters(reporter): pass
