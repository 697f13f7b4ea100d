package gc

// manifestKeys holds keys of manifests as parallel arrays, one per column.
type manifestKeys struct {
	namespaces, repositories, ids []int64
}

func (k *manifestKeys) add(namespace, repository, id int64) {
	k.namespaces = append(k.namespaces, namespace)
	k.repositories = append(k.repositories, repository)
	k.ids = append(k.ids, id)
}

func (k *manifestKeys) join(other manifestKeys) {
	k.namespaces = append(k.namespaces, other.namespaces...)
	k.repositories = append(k.repositories, other.repositories...)
	k.ids = append(k.ids, other.ids...)
}

// without returns the keys that are not in others.
func (k *manifestKeys) without(others manifestKeys) (rest manifestKeys) {
	if others.len() == 0 {
		return *k
	}
	skip := make(map[int64]bool, others.len()) // ids are unique across repositories
	for _, id := range others.ids {
		skip[id] = true
	}
	for i, id := range k.ids {
		if !skip[id] {
			rest.add(k.namespaces[i], k.repositories[i], id)
		}
	}
	return rest
}

func (k *manifestKeys) len() int { return len(k.ids) }

func (k *manifestKeys) args(more ...any) []any {
	return append([]any{k.namespaces, k.repositories, k.ids}, more...)
}
