package browse

// Rank sets how many tags are sorted by size one by one.
func (b *Browser) Rank(n int) { b.ranked = n }

// BoundReferences sets how many references of indexes are read to sort tags by size.
func (b *Browser) BoundReferences(n int) { b.references = n }
