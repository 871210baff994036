"""Values: frozen, pure, standard library only. Nothing here touches a file, a clock, a process or a GPU."""
