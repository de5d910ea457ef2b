// The toolkit's matrix product. A kernel with cube cores includes it even if it uses none of it: the wrapper that the
// operator build writes around such a kernel calls matmul::clearWorkspace, which no other header declares.
#pragma once
