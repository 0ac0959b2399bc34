"""What tests, scripts and benchmarks try the library with: models, masks, and a judge.

- `nets`: small models, one for each way that channels travel; `networks`: random ones, drawn.
- `masks`: random selections; `lively`: weights with which outputs depend on everything.
- `comparing`: how far two models are apart; `exactly`: exports held against masked models.
- `drafts`: plans that prices speak against.

It stands beside `src` and is no part of what is installed. It imports neither tests nor scripts.
"""
