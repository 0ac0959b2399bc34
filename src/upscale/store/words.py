"""The words of the registry: what a file may name beside the table's `stored` operations.

Nothing else is called. What is missing was left out with care or never met: operations that read
or write files, hand out raw memory, run code or change torch itself have no place in a file.
"""

from __future__ import annotations

# Operations on tensors without an entry in the table. Each is looked for in torch,
# torch.nn.functional, ATen and Tensor.
OPERATIONS = """
    absolute acos acosh addbmm addmm addmv addr adjoint affine_grid all aminmax angle any arange
    arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argwhere asin asinh atan
    atan2 atanh atleast_1d atleast_2d atleast_3d baddbmm bernoulli bilinear bincount bitwise_and
    bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor block_diag broadcast_tensors
    broadcast_to bucketize cartesian_prod cdist clip column_stack complex concatenate conj
    convolution copy copysign cosh cosine_similarity count_nonzero cross cummax cummin cumprod
    deg2rad det diag diag_embed diagflat diagonal diagonal_scatter diff digamma dist divide dot
    dropout1d dropout2d dropout3d dsplit dstack embedding embedding_bag empty empty_like equal erfc
    erfinv exp2 eye fill fix fliplr flipud float_power fmax fmin fold frac fractional_max_pool2d
    fractional_max_pool3d full full_like gather greater greater_equal grid_sample grid_sampler
    grid_sampler_2d grid_sampler_3d gumbel_softmax heaviside histc hsplit hstack hypot imag index
    index_add index_copy index_fill index_put inner interpolate inverse is_complex is_floating_point
    is_nonzero isclose isfinite isin isinf isneginf isposinf isreal kron kthvalue ldexp less
    less_equal lgamma lift_fresh_copy linspace local_response_norm log10 logaddexp logaddexp2
    logcumsumexp logdet logical_xor logit logsigmoid logspace logsumexp lp_pool1d lp_pool2d
    lp_pool3d masked_scatter masked_select matrix_exp matrix_power max max_unpool1d max_unpool2d
    max_unpool3d median meshgrid min mm mode moveaxis msort multinomial multiply mv nanmean
    nanmedian nansum narrow_copy native_dropout native_group_norm native_layer_norm negative
    new_empty new_full new_ones new_zeros nonzero norm_except_dim normal normalize not_equal numel
    one_hot ones ones_like outer pairwise_distance pdist polar positive quantile rad2deg rand
    rand_like randint randint_like randn randn_like randperm ravel real reflection_pad3d
    repeat_interleave replication_pad1d replication_pad3d rot90 rrelu scalar_tensor scatter
    scatter_add scatter_reduce searchsorted select_scatter signbit sinc sinh slice_scatter slogdet
    softmin softsign std_mean subtract sym_numel sym_size sym_storage_offset sym_stride take
    take_along_dim tanhshrink tensordot topk trace tril tril_indices triu triu_indices true_divide
    unfold unique_consecutive unsafe_chunk unsafe_split upsample upsample_bilinear upsample_nearest
    vander var_mean vdot view_as view_as_complex view_as_real vsplit vstack xlogy zero zeros
    zeros_like _adaptive_avg_pool2d _adaptive_avg_pool3d _conj _weight_norm
""".split()

# Those that write into what they are given, likewise.
IN_PLACE = """
    acos_ acosh_ addbmm_ addcdiv_ addcmul_ addmm_ alpha_dropout_ asin_ asinh_ atan_ atanh_ baddbmm_
    bernoulli_ ceil_ clip_ copy_ cos_ cosh_ cumprod_ cumsum_ divide_ eq_ erf_ erfc_ erfinv_ exp2_
    expm1_ feature_alpha_dropout_ feature_dropout_ fill_ floor_ floor_divide_ fmod_ frac_ ge_ gt_
    index_add_ index_copy_ index_fill_ index_put_ le_ lerp_ log_ log10_ log1p_ log2_ logical_and_
    logical_not_ logical_or_ logical_xor_ logit_ lt_ masked_scatter_ multiply_ nan_to_num_ ne_ neg_
    negative_ normal_ pow_ random_ reciprocal_ remainder_ round_ rrelu_ rsqrt_ scatter_ scatter_add_
    sgn_ sign_ sin_ sinh_ sqrt_ square_ squeeze_ subtract_ swapaxes_ t_ tan_ transpose_ tril_ triu_
    true_divide_ trunc_ uniform_ unsqueeze_ xlogy_ zero_
""".split()

# What only tensors have, as methods.
METHODS = """
    bfloat16 bool byte char cpu cuda dim double element_size expand_as float half int is_contiguous
    item long ndimension nelement reshape_as short size stride sum_to_size
""".split()

# What may be asked of a tensor without a call.
ATTRIBUTES = "shape dtype device ndim is_cuda T mT H mH real imag layout itemsize".split()

OPERATORS = """
    abs add and_ eq floordiv ge getitem gt iadd iand ifloordiv imatmul imod imul invert ior ipow
    isub itruediv ixor le lshift lt matmul mod mul ne neg not_ or_ pos pow rshift setitem sub
    truediv xor
""".split()

# Python's own functions of numbers, met where sizes are computed.
BUILTINS = "abs bool float int len max min round sum".split()
MATHS = "ceil floor sqrt prod trunc".split()
SYMBOLIC = "sym_float sym_int sym_ite sym_max sym_min sym_not sym_sum".split()

FFTS = """
    fft fft2 fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn rfft rfft2
    rfftn
""".split()
LINEAR_ALGEBRA = "cross det inv matmul matrix_norm multi_dot norm vecdot vector_norm".split()

CONSTANTS = """
    bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128
    contiguous_format preserve_format channels_last channels_last_3d strided
""".split()

# Layers. What torch.nn holds beside them are containers, losses and layers without sizes yet.
LAYERS = """
    AlphaDropout Bilinear CELU ChannelShuffle CosineSimilarity CrossMapLRN2d Dropout ELU Embedding
    EmbeddingBag FeatureAlphaDropout Flatten Fold GELU GLU GRU GRUCell GroupNorm Hardshrink
    Hardsigmoid Hardswish Hardtanh Identity LSTM LSTMCell LayerNorm LeakyReLU Linear
    LocalResponseNorm LogSigmoid LogSoftmax Mish MultiheadAttention PReLU PairwiseDistance
    PixelShuffle PixelUnshuffle RMSNorm RNN RNNCell RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax
    Softmax2d Softmin Softplus Softshrink Softsign SyncBatchNorm Tanh Tanhshrink Threshold Unflatten
    Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d
""".split()

# Layers that there are for one, two and three axes of space: `Conv` is Conv1d, Conv2d and Conv3d.
SPATIAL_LAYERS = """
    AdaptiveAvgPool AdaptiveMaxPool AvgPool BatchNorm CircularPad ConstantPad Conv ConvTranspose
    Dropout InstanceNorm LPPool MaxPool MaxUnpool ReflectionPad ReplicationPad ZeroPad
""".split()
LAYERS += [f"{name}{axes}d" for name in SPATIAL_LAYERS for axes in (1, 2, 3)]

# torchvision's functions that stay whole in a graph, and the tuples its models give: where each is.
_SWIN = "shifted_window_attention _patch_merging_pad _get_relative_position_bias".split()
TORCHVISION = {
    "stochastic_depth": "torchvision.ops.stochastic_depth",
    **dict.fromkeys(("drop_block2d", "drop_block3d"), "torchvision.ops.drop_block"),
    **dict.fromkeys(_SWIN, "torchvision.models.swin_transformer"),
    "GoogLeNetOutputs": "torchvision.models.googlenet",
    "InceptionOutputs": "torchvision.models.inception",
}
