// Which element a thread works on.
#pragma once

namespace sample {

__attribute__((device)) inline unsigned element_index() {
  return __builtin_amdgcn_workgroup_id_x() * 256u + __builtin_amdgcn_workitem_id_x();
}

}  // namespace sample
