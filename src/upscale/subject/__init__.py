"""What every verb starts from: a model that is accepted, with plain weights and named layers."""
