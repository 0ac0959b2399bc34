"""The words of the registry: every operation and layer a file may name. Nothing else is called.

What is missing here was left out with care or never met: operations that read or write files,
hand out raw memory, run code or change torch itself have no place in a file.
"""

from __future__ import annotations

# Operations on tensors. Each is looked for in torch, torch.nn.functional, ATen and Tensor.
OPERATIONS = tuple(
    """
    abs absolute acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d add addbmm addcdiv addcmul addmm
    addmv addr adjoint affine_grid alias all alpha_dropout amax amin aminmax angle any arange
    arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort argwhere asin asinh
    atan atan2 atanh atleast_1d atleast_2d atleast_3d avg_pool1d avg_pool2d avg_pool3d baddbmm
    batch_norm bernoulli bilinear bincount bitwise_and bitwise_left_shift bitwise_not bitwise_or
    bitwise_right_shift bitwise_xor block_diag bmm broadcast_tensors broadcast_to bucketize
    cartesian_prod cat cdist ceil celu channel_shuffle chunk clamp clamp_max clamp_min clip clone
    column_stack complex concat concatenate conj constant_pad_nd contiguous conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d convolution copy copysign cos cosh
    cosine_similarity count_nonzero cross cummax cummin cumprod cumsum deg2rad det detach diag
    diag_embed diagflat diagonal diagonal_scatter diff digamma dist div divide dot dropout
    dropout1d dropout2d dropout3d dsplit dstack einsum elu embedding embedding_bag empty empty_like
    eq equal erf erfc erfinv exp exp2 expand expm1 eye feature_alpha_dropout feature_dropout fill
    fix flatten flip fliplr flipud float_power floor floor_divide fmax fmin fmod fold frac
    fractional_max_pool2d fractional_max_pool3d full full_like gather ge gelu glu greater
    greater_equal grid_sample grid_sampler grid_sampler_2d grid_sampler_3d group_norm gt
    gumbel_softmax hardshrink hardsigmoid hardswish hardtanh heaviside histc hsplit hstack hypot
    imag index index_add index_copy index_fill index_put index_select inner instance_norm
    interpolate inverse is_complex is_floating_point is_nonzero isclose isfinite isin isinf isnan
    isneginf isposinf isreal kron kthvalue layer_norm ldexp le leaky_relu lerp less less_equal
    lgamma lift_fresh_copy linear linspace local_response_norm log log10 log1p log2 log_sigmoid
    log_softmax logaddexp logaddexp2 logcumsumexp logdet logical_and logical_not logical_or
    logical_xor logit logsigmoid logspace logsumexp lp_pool1d lp_pool2d lp_pool3d lt masked_fill
    masked_scatter masked_select matmul matrix_exp matrix_power max max_pool1d max_pool2d
    max_pool2d_with_indices max_pool3d max_unpool1d max_unpool2d max_unpool3d maximum mean median
    meshgrid min minimum mish mm mode moveaxis movedim msort mul multinomial multiply mv nan_to_num
    nanmean nanmedian nansum narrow narrow_copy native_batch_norm native_channel_shuffle
    native_dropout native_group_norm native_layer_norm ne neg negative new_empty new_full new_ones
    new_zeros nonzero norm norm_except_dim normal normalize not_equal numel one_hot ones ones_like
    outer pad pairwise_distance pdist permute pixel_shuffle pixel_unshuffle polar positive pow prelu
    prod quantile rad2deg rand rand_like randint randint_like randn randn_like randperm ravel real
    reciprocal reflection_pad1d reflection_pad2d reflection_pad3d relu relu6 remainder repeat
    repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape rms_norm roll
    rot90 round rrelu rsqrt rsub scalar_tensor scaled_dot_product_attention scatter scatter_add
    scatter_reduce searchsorted select select_scatter selu sgn sigmoid sign signbit silu sin sinc
    sinh slice slice_scatter slogdet softmax softmin softplus softshrink softsign sort split
    split_with_sizes sqrt square squeeze stack std std_mean sub subtract sum swapaxes swapdims
    sym_numel sym_size sym_storage_offset sym_stride t take take_along_dim tan tanh tanhshrink
    tensor_split tensordot threshold tile to topk trace transpose tril tril_indices triu
    triu_indices true_divide trunc type_as unbind unflatten unfold unique_consecutive unsafe_chunk
    unsafe_split unsqueeze upsample upsample_bicubic2d upsample_bilinear upsample_bilinear2d
    upsample_linear1d upsample_nearest upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d vander var var_mean vdot view view_as view_as_complex view_as_real vsplit
    vstack where xlogy zero zeros zeros_like _adaptive_avg_pool2d _adaptive_avg_pool3d
    _conj _log_softmax _softmax _to_copy _unsafe_view _weight_norm
    """.split()
)

# Those that write into what they are given, as functions, methods and ATen operations.
IN_PLACE = tuple(
    """
    abs_ acos_ acosh_ add_ addbmm_ addcdiv_ addcmul_ addmm_ alpha_dropout_ asin_ asinh_ atan_
    atanh_ baddbmm_ bernoulli_ ceil_ celu_ clamp_ clamp_max_ clamp_min_ clip_ copy_ cos_ cosh_
    cumprod_ cumsum_ div_ divide_ dropout_ elu_ eq_ erf_ erfc_ erfinv_ exp_ exp2_ expm1_
    feature_alpha_dropout_ feature_dropout_ fill_ floor_ floor_divide_ fmod_ frac_ ge_ gelu_ gt_
    hardsigmoid_ hardswish_ hardtanh_ index_add_ index_copy_ index_fill_ index_put_ le_ leaky_relu_
    lerp_ log_ log10_ log1p_ log2_ logical_and_ logical_not_ logical_or_ logical_xor_ logit_ lt_
    masked_fill_ masked_scatter_ mish_ mul_ multiply_ nan_to_num_ ne_ neg_ negative_ normal_ pow_
    random_ reciprocal_ relu_ relu6_ remainder_ round_ rrelu_ rsqrt_ scatter_ scatter_add_ selu_
    sgn_ sigmoid_ sign_ silu_ sin_ sinh_ sqrt_ square_ squeeze_ sub_ subtract_ swapaxes_ t_ tan_
    tanh_ threshold_ transpose_ tril_ triu_ true_divide_ trunc_ uniform_ unsqueeze_ xlogy_ zero_
    """.split()
)

# What only tensors have, as methods.
METHODS = tuple(
    """
    bfloat16 bool byte char cpu cuda dim double element_size expand_as float half int is_contiguous
    item long ndimension nelement reshape_as short size stride sum_to_size
    """.split()
)

# What may be asked of a tensor without a call.
ATTRIBUTES = tuple("shape dtype device ndim is_cuda T mT H mH real imag layout itemsize".split())

OPERATORS = tuple(
    """
    abs add and_ eq floordiv ge getitem gt iadd iand ifloordiv imatmul imod imul invert ior ipow
    isub itruediv ixor le lshift lt matmul mod mul ne neg not_ or_ pos pow rshift setitem sub
    truediv xor
    """.split()
)

# Python's own functions of numbers, met where sizes are computed.
BUILTINS = tuple("abs bool float int len max min round sum".split())
MATHS = tuple("ceil floor sqrt prod trunc".split())
SYMBOLIC = tuple("sym_float sym_int sym_ite sym_max sym_min sym_not sym_sum".split())

FFTS = tuple(
    """
    fft fft2 fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn rfft rfft2
    rfftn
    """.split()
)
LINEAR_ALGEBRA = tuple("cross det inv matmul matrix_norm multi_dot norm vecdot vector_norm".split())

CONSTANTS = tuple(
    """
    bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128
    contiguous_format preserve_format channels_last channels_last_3d strided
    """.split()
)

# Layers. What torch.nn holds beside them are containers, losses and layers without sizes yet.
LAYERS = tuple(
    """
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d
    AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d BatchNorm1d BatchNorm2d BatchNorm3d
    Bilinear CELU ChannelShuffle CircularPad1d CircularPad2d CircularPad3d ConstantPad1d
    ConstantPad2d ConstantPad3d Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d
    CosineSimilarity CrossMapLRN2d Dropout Dropout1d Dropout2d Dropout3d ELU Embedding EmbeddingBag
    FeatureAlphaDropout Flatten Fold GELU GLU GRU GRUCell GroupNorm Hardshrink Hardsigmoid Hardswish
    Hardtanh Identity InstanceNorm1d InstanceNorm2d InstanceNorm3d LPPool1d LPPool2d LPPool3d LSTM
    LSTMCell LayerNorm LeakyReLU Linear LocalResponseNorm LogSigmoid LogSoftmax MaxPool1d MaxPool2d
    MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d Mish MultiheadAttention PReLU PairwiseDistance
    PixelShuffle PixelUnshuffle RMSNorm RNN RNNCell RReLU ReLU ReLU6 ReflectionPad1d ReflectionPad2d
    ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU SiLU Sigmoid Softmax
    Softmax2d Softmin Softplus Softshrink Softsign SyncBatchNorm Tanh Tanhshrink Threshold Unflatten
    Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d
    """.split()
)

# torchvision's functions that stay whole in a graph, and the tuples its models give: where each is.
TORCHVISION = {
    "stochastic_depth": "torchvision.ops.stochastic_depth",
    "drop_block2d": "torchvision.ops.drop_block",
    "drop_block3d": "torchvision.ops.drop_block",
    "shifted_window_attention": "torchvision.models.swin_transformer",
    "_patch_merging_pad": "torchvision.models.swin_transformer",
    "_get_relative_position_bias": "torchvision.models.swin_transformer",
    "GoogLeNetOutputs": "torchvision.models.googlenet",
    "InceptionOutputs": "torchvision.models.inception",
}
