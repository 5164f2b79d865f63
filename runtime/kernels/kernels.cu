// All kernels, one translation unit.
#include "accept.cu"
#include "begin.cu"
#include "commit.cu"
#include "deciding.cu"
#include "drafting.cu"
#include "noise.cu"
#include "routing.cu"
#include "target_inputs.cu"
