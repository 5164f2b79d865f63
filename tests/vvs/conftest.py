"""Small matrices: more than one BLAS thread only gets in the way, most of all on a busy machine."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
