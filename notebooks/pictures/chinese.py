"""The words of the moving pictures in Chinese, for the pages that end with .zh.md.

The key is a sentence as moving.py has it. A sentence that is not here stays as it is: a line of
code, the name of a variable, an error.
"""

CHINESE = {
    "lang": "zh-CN",  # so that a browser takes the Chinese shapes of characters
    # in several pictures
    "backward": "反向传播",
    # average
    "Four gradients average to that of the batch": "四个分片的梯度，平均后就是整个批次的梯度",
    "shard {}": "分片 {}",
    "whole batch": "整个批次",
    "average of the shards": "四个分片的平均值",
    "the first {} of {} numbers of a gradient": "梯度的前 {} 个数（共 {} 个）",
    "For each of {} numbers of the gradient, a column has four marks, next to one another, for "
    "the values of four shards. They differ. A circle shows the value of the whole batch. The "
    "average of the four marks lies in the circle each time.": (
        "梯度中的 {} 个数，每个数占一列，列中并排的四个标记是四个分片各自算出的值，互不相同。"
        "圆圈是整个批次算出的值。四个标记的平均值每次都落在圆圈里。"
    ),
    # copies
    "DataParallel: one process, a thread per GPU": "DataParallel：一个进程，每张卡一个线程",
    "model": "模型",
    "batch of {}": "批次：{} 张图像",
    "{} images": "{} 张图像",
    "outputs": "输出",
    "gradients": "梯度",
    "replicate: GPU 0 copies the model to all": "replicate：GPU 0 把模型复制到各卡",
    "scatter: GPU 0 splits the batch": "scatter：GPU 0 把批次拆成几份",
    "parallel apply: all GPUs compute": "parallel apply：各卡同时计算",
    "gather: the outputs come back to GPU 0": "gather：输出汇集到 GPU 0",
    "backward: GPU 0 sends gradients of the outputs": "backward：输出的梯度发到各卡",
    "gradients of the weights come back, and add up": "权重的梯度回到 GPU 0 并相加",
    "One process has four GPUs. In each step GPU 0 copies the model to the three others, and "
    "sends each of them {} of the {} images. All four compute. The outputs come back to GPU 0, "
    "which sends the gradients of the outputs down. The gradients of the weights come back, "
    "and GPU 0 adds them up. It alone updates its model.": (
        "一个进程使用四张卡。每个训练步里，GPU 0 都把模型复制到另外三张卡，"
        "并给每张卡发去 {} 张图像，全批次共 {} 张。"
        "四张卡同时计算。输出回到 GPU 0，GPU 0 再把输出的梯度发到各卡。"
        "权重的梯度回到 GPU 0，在那里相加。只有 GPU 0 更新自己的模型。"
    ),
    # idea
    "One step of training on two ranks": "两个 rank 上的一个训练步",
    "model: w = {}": "模型：w = {}",
    "gradient {}": "梯度 {}",
    "1 split": "1 拆分批次",
    "2 forward,": "2 前向传播、",
    "3 average": "3 求平均",
    "4 same step,": "4 更新相同，",
    "equal weights": "权重仍相同",
    "A batch of eight images is split between two ranks. Both ranks have the whole model, with "
    "the weight {}. Each computes a gradient of its own images: {} on rank 0, {} on rank 1. "
    "Both ranks get the average, {}, and take the same step. So both have the weight {} now.": (
        "八张图像的一个批次分给两个 rank。两个 rank 都有完整的模型，权重是 {}。"
        "每个 rank 用自己的图像算出一个梯度：rank 0 是 {}，rank 1 是 {}。"
        "两个 rank 都得到平均值 {}，作同样的更新，所以两边的权重现在都是 {}。"
    ),
    # buckets
    "Buckets travel while backward still runs": "反向传播还在计算，梯度桶已经发出",
    "bucket {}: {} kB": "桶 {}：{} 千字节",
    "exposed: {} ms": "未被掩盖：{} 毫秒",
    "A mark is the moment at which a gradient is complete.": "一条短线是一个梯度算完的时刻。",
    "{} ms": "{} 毫秒",
    "A backward pass of {} milliseconds. {} buckets of gradients are sent and averaged. Those "
    "that are full early are averaged while backward computes the next gradients. From {} "
    "milliseconds on all gradients are complete, and the rank waits: this part is exposed.": (
        "一次 {} 毫秒的反向传播。{} 个梯度桶先后发出并求平均。"
        "先装满的桶在反向传播计算后面的梯度时求平均。"
        "从 {} 毫秒起，全部梯度都已算完，rank 只是在等待，这一部分通信未被掩盖。"
    ),
    # launch
    "torchrun runs the whole script in each rank": "torchrun 让每个 rank 运行整个脚本",
    "address": "地址",
    "torchrun starts a store and both ranks": "torchrun 启动 store 和两个 rank",
    "it tells each rank its numbers": "把各项编号告诉每个 rank",
    "the ranks exchange addresses in the store": "各 rank 通过 store 交换地址",
    "then they exchange gradients directly": "此后各 rank 直接交换梯度",
    "torchrun watches: if one fails, it stops all": "torchrun 监视：一个出错，就结束全部",
    "torchrun starts a store, and minimal.py in two processes. It tells each its RANK, "
    "LOCAL_RANK and WORLD_SIZE. The ranks write their addresses to the store, and read the "
    "address of the other rank there. Then they send gradients to each other directly. "
    "torchrun watches the processes.": (
        "torchrun 启动一个 store，并在两个进程里启动脚本 minimal.py，"
        "把 RANK、LOCAL_RANK 和 WORLD_SIZE 告诉每个进程。"
        "两个 rank 把自己的地址写进 store，从中读出对方的地址，此后互相直接发送梯度。"
        "torchrun 一直监视这两个进程。"
    ),
    # failures
    "Who failed first, and whom torchrun names": "谁先出错，torchrun 指出的又是谁",
    "rank {} hangs": "rank {} 卡住",
    "rank {} raises": "rank {} 抛出异常",
    "rank {} exits early": "rank {} 提前退出",
    "rank {} is killed": "rank {} 被杀掉",
    "hangs": "卡住",
    "waits": "等待",
    "computes": "计算",
    "timeout": "超时",
    "exit code 0": "退出码 0",
    "connection closed": "连接已断开",
    "names rank {}: wrong": "指出 rank {}：错",
    "names rank {}: right": "指出 rank {}：对",
    "fails": "出错",
    "exits without an error": "退出，没有报错",
    "torchrun stops all": "torchrun 结束所有 rank",
    "Four runs of two ranks. In each, one rank fails first while the other one computes, and "
    "torchrun's report names one. In the cases {} it names a rank that did not fail first.": (
        "四次运行，每次两个 rank。每次都有一个 rank 先出错，另一个还在计算，"
        "torchrun 的报告也指出一个 rank。"
        "在情形 {} 中，报告指出的不是先出错的 rank。"
    ),
    # nodes
    "LOCAL_RANK begins at 0 on every node": "LOCAL_RANK 在每个节点上都从 0 开始",
    "node {}": "节点 {}",
    "network": "网络",
    "RANK: who saves and prints. LOCAL_RANK: which GPU.": (
        "RANK 决定由谁打印和保存，LOCAL_RANK 决定用哪张卡"
    ),
    "Two nodes with two ranks each. RANK counts on from node 0 to node 1: 0, 1, 2, 3. "
    "LOCAL_RANK begins again on node 1: 0, 1, 0, 1. It chooses the GPU of the node.": (
        "两个节点，各有两个 rank。RANK 从节点 0 到节点 1 连续编号：0、1、2、3。"
        "LOCAL_RANK 在节点 1 上重新从 0 开始：0、1、0、1，用来选择本节点的卡。"
    ),
    # ring
    "Ring all-reduce: four ranks, six steps": "环形 all-reduce：四个 rank，六步",
    "step {}: the receiver adds (reduce-scatter)": "第 {} 步：接收方累加（reduce-scatter）",
    "step {}: the receiver copies (all-gather)": "第 {} 步：接收方复制（all-gather）",
    "after step 1: each rank has added one chunk": "第 1 步之后：每个 rank 累加了一块",
    "a dot or stripe: whose numbers a chunk contains": "圆点和色条：这一块里含有哪些 rank 的数",
    "below: a row is a rank, a column a chunk": "下方：一行是一个 rank，一列是一块",
    "start": "开始",
    "after step {}": "第 {} 步之后",
    "Four ranks in a ring have four chunks each. In each step every rank sends one chunk to "
    "the next rank. In steps 1 to 3 the receiver adds it, so that each rank has one chunk with "
    "the numbers of all four ranks. In steps 4 to 6 these chunks are copied around the ring. "
    "Three squares show the chunks of all ranks at the start, after step 3 and after step 6.": (
        "四个 rank 组成一个环，每个 rank 的数据分成四块。"
        "每一步里，每个 rank 都把一块发给下一个 rank。"
        "第 1 到 3 步，接收方把收到的块加到自己的块上，"
        "于是每个 rank 都有一块含有全部四个 rank 的数。"
        "第 4 到 6 步，这些块沿着环复制到所有 rank。"
        "下方三个方块是所有 rank 的各块在开始时、第 3 步之后和第 6 步之后的样子。"
    ),
}
