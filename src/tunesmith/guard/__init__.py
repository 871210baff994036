"""`tunesmith guard`: did kernels become slower, are their tables sound, is what is stored still the best?

`rule` says better, same, worse or cannot tell, and is fed numbers; `sides` reads what is compared; `static` needs no
device; `live` measures on the one at hand.
"""
