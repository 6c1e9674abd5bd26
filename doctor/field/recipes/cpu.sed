# Rewrites a script for GPUs so that it runs on CPUs. No line is added or removed, so that line
# numbers stay those of the repository: sed -i -E -f cpu.sed FILE...
s/(["'])nccl\1/"gloo"/g
s/\.cuda\([^()]*\)//g
s/torch\.cuda\.set_device\([^()]*(\([^()]*\)[^()]*)*\)/None/g
s/torch\.accelerator\.set_device_index\([^()]*\)/None/g
s/device_ids *= *\[[^]]*\]/device_ids=None/g
s/\.to\((self\.)?(gpu_id|local_rank|rank|device_id)\)/.to("cpu")/g
s/torch\.cuda\.(synchronize|empty_cache|reset_peak_memory_stats)\([^()]*\)/None/g
s/torch\.cuda\.(max_memory_allocated|memory_allocated|memory_reserved)\([^()]*\)/0/g
s/torch\.cuda\.device_count\(\)/2/g
s/torch\.cuda\.current_device\(\)/"cpu"/g
s/torch\.cuda\.amp\.autocast\(/torch.autocast("cpu", /g
s/torch\.cuda\.amp\.GradScaler\(/torch.amp.GradScaler("cpu", /g
s/pin_memory=True/pin_memory=False/g
s/device *= *(["'])cuda\1/device="cpu"/g
s/torch\.device\((["'])cuda\1\)/torch.device("cpu")/g
s/output_device *= *[A-Za-z_.]+/output_device=None/g
s/torch\.device\((["'])cuda\1, [A-Za-z_.]+\)/torch.device("cpu")/g
