package browse

// Rank sets how many tags are sorted by size one by one.
func (b *Browser) Rank(n int) { b.ranked = n }
