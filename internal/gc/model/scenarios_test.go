package model

import "slices"

// scenario is a situation in which processes meet.
type scenario struct {
	name  string
	world world
	// setup makes what is there at the start, and says who runs.
	setup func(m *machine) []*program
	// long scenarios run when all are asked for.
	long bool
	// mayDeadlock: clients may lose a deadlock among each other, and run again.
	mayDeadlock bool
	// open is a problem that the protocol has not solved. A test says so, and fails
	// when it is solved.
	open    string
	crashes bool
}

// variant says whether events have delays.
type variant int

const (
	noDelays variant = 1
	delays   variant = 2
)

// machine makes the scenario ready to be explored.
func (s scenario) machine(v variant, what mutation) *machine {
	m := &machine{world: s.world, noDelay: v == noDelays, mutation: what,
		mayDeadlock: s.mayDeadlock, crashes: s.crashes}
	if m.repositories == 0 {
		m.repositories = 1
	}
	if m.perUpload == 0 {
		m.perUpload = 1
	}
	m.uploads = max(m.uploads, m.blobs)
	m.layout()
	for r := range m.repositories {
		m.start.rows[m.repository(r)] = 1
	}
	m.programs = s.setup(m)
	if len(m.programs) > maxProcs {
		panic("model: too many processes")
	}
	return m
}

// hasBlob makes a blob with its object, linked to repositories. Its object is that
// of the upload with its number.
func (m *machine) hasBlob(b int, linked ...int) {
	m.start.rows[m.blob(b)] = uint8(b*m.perUpload) + 1
	m.start.objects[b*m.perUpload], m.start.content[b*m.perUpload] = 99, 99
	for _, r := range linked {
		m.start.rows[m.link(m.linkOf(r, b))] = 1
	}
}

// hasManifest makes a manifest, with tags.
func (m *machine) hasManifest(slot int, tags ...int) {
	m.start.rows[m.manifest(slot)], m.start.serial[slot] = 1, 1
	for i, c := range m.manifests[slot].children {
		m.start.rows[m.child(slot, i)] = uint8(identity(c, 1)) + 1
	}
	for _, t := range tags {
		m.start.rows[m.tag(t)] = uint8(identity(slot, 1)) + 1
	}
}

// isDue makes reviews of manifests that are due.
func (m *machine) isDue(slots ...int) {
	for _, slot := range slots {
		m.start.rows[m.review(identity(slot, 1))] = due
	}
}

// blobIsDue makes reviews of blobs that are due.
func (m *machine) blobIsDue(blobs ...int) {
	for _, b := range blobs {
		m.start.rows[m.blobReview(b)] = due
	}
}

// uploading makes the row of an upload.
func (m *machine) uploading(uploads ...int) {
	for _, u := range uploads {
		m.start.rows[m.upload(u)] = 1
	}
}

// image is a manifest with a configuration.
func image(name string, config int, layers ...int) manifest {
	return manifest{name: name, config: config, layers: layers, subject: -1}
}

func (man manifest) in(r int) manifest { man.repository = r; return man }
func (man manifest) of(s int) manifest { man.subject = s; return man }
func index(name string, children ...int) manifest {
	return manifest{name: name, config: -1, children: children, subject: -1}
}

var scenarios = []scenario{
	{
		name:  "the last tag is deleted",
		world: world{blobs: 1, manifests: []manifest{image("M", 0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(0, 0)
			m.isDue(0)
			return []*program{m.deleteTag(0), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "the last index is deleted",
		world: world{blobs: 1, manifests: []manifest{image("M", 0), index("I", 0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(0)
			m.hasManifest(1, 0)
			m.isDue(0)
			return []*program{m.deleteManifest(1), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "an untagged manifest is tagged",
		world: world{blobs: 1, manifests: []manifest{image("M", 0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(0)
			m.isDue(0)
			return []*program{m.put(0, 0), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "an index is put of an unreferenced manifest",
		world: world{blobs: 1, manifests: []manifest{image("M", 0), index("I", 0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(0)
			m.isDue(0)
			return []*program{m.put(1, 0), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:    "a blob is asked for, then used",
		world:   world{blobs: 1, manifests: []manifest{image("M", 0)}, tags: []int{0}},
		crashes: true,
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.blobIsDue(0)
			return []*program{m.headBlob(0, 0), m.put(0, 0), m.reviewManifests(), m.reviewBlobs(), m.sweep(0)}
		},
	},
	{
		name:  "a blob is asked for while its last manifest goes",
		world: world{blobs: 1, manifests: []manifest{image("M", 0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(0, 0)
			return []*program{m.headBlob(0, 0), m.deleteManifest(0), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "a blob is unlinked while a manifest is put",
		world: world{blobs: 1, manifests: []manifest{image("M", 0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.blobIsDue(0)
			return []*program{m.deleteBlob(0, 0), m.put(0, 0), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:    "a blob is pushed again while it is deleted",
		world:   world{blobs: 1, uploads: 2},
		crashes: true,
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.blobIsDue(0)
			m.uploading(1)
			return []*program{m.push(1, 0, 0, false), m.getBlob(0, 0), m.reviewBlobs(), m.sweep(0), m.reap()}
		},
	},
	{
		name:  "two push the same blob",
		world: world{blobs: 1, uploads: 3},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.blobIsDue(0)
			m.uploading(1, 2)
			return []*program{m.push(1, 0, 0, false), m.push(2, 0, 0, false), m.reviewBlobs(), m.sweep(0)}
		},
	},
	{
		name:  "a blob is mounted while it is unlinked and reviewed",
		world: world{repositories: 2, blobs: 1},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.blobIsDue(0)
			return []*program{m.mount(0, 1, 0), m.deleteBlob(0, 0), m.reviewBlobs()}
		},
	},
	{
		name:  "a link is removed, asked for and used",
		world: world{repositories: 2, blobs: 1, manifests: []manifest{image("M", 0), image("N", 0).in(1)}, tags: []int{0, 1}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0, 1)
			m.hasManifest(0, 0)
			m.blobIsDue(0)
			return []*program{m.put(1, 1), m.headBlob(1, 0), m.reviewBlobs()}
		},
	},
	{
		name:  "a link is mounted, asked for and removed",
		world: world{repositories: 2, blobs: 1, manifests: []manifest{image("M", 0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0, 1)
			m.hasManifest(0, 0)
			m.blobIsDue(0)
			return []*program{m.mount(0, 1, 0), m.headBlob(1, 0), m.deleteBlob(1, 0), m.reviewBlobs()}
		},
	},
	{
		name:  "a manifest is put again and asked for",
		world: world{blobs: 1, manifests: []manifest{image("M", 0)}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(0)
			m.isDue(0)
			return []*program{m.put(0), m.headManifest(0), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "a subject arrives",
		world: world{blobs: 1, manifests: []manifest{image("S", 0), image("R", 0).of(0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(1)
			m.isDue(1)
			return []*program{m.put(0, 0), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "a subject goes while a referrer is put",
		world: world{blobs: 1, manifests: []manifest{image("S", 0), image("R", 0).of(0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(0, 0)
			return []*program{m.put(1), m.deleteManifest(0), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "a subject and its referrer are put",
		world: world{blobs: 1, manifests: []manifest{image("S", 0), image("R", 0).of(0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			return []*program{m.put(0, 0), m.put(1), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "a tag is switched",
		world: world{blobs: 1, manifests: []manifest{image("M", 0), image("N", 0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(0, 0)
			m.isDue(0)
			return []*program{m.put(1, 0), m.deleteTag(0), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "an index and its child are reviewed together",
		world: world{blobs: 1, manifests: []manifest{image("M", 0), index("I", 0)}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(0)
			m.hasManifest(1)
			m.isDue(0, 1)
			return []*program{m.headManifest(0), m.reviewManifests(), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "a subject and its referrer are reviewed together",
		world: world{blobs: 1, manifests: []manifest{image("S", 0), image("R", 0).of(0)}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(0)
			m.hasManifest(1)
			m.isDue(0, 1)
			return []*program{m.headManifest(1), m.reviewManifests(), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:    "a late writer of an upload",
		world:   world{blobs: 1, uploads: 1, perUpload: 2},
		crashes: true,
		setup: func(m *machine) []*program {
			m.uploading(0)
			return []*program{m.push(0, 0, 0, true), m.push(0, 0, 0, true), m.reap(), m.sweep(0), m.reviewBlobs()}
		},
	},
	{
		name:    "two sweepers",
		world:   world{blobs: 2, uploads: 2},
		crashes: true,
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasBlob(1, 0)
			m.blobIsDue(0, 1)
			return []*program{m.getBlob(0, 0), m.reviewBlobs(), m.sweep(0), m.sweep(1)}
		},
	},
	{
		name:  "a repository is deleted while a manifest is put",
		world: world{blobs: 1, manifests: []manifest{image("M", 0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.blobIsDue(0)
			return []*program{m.put(0, 0), m.deleteRepository(0), m.reviewBlobs()}
		},
	},
	{
		name:  "manifests that share blobs are put and deleted",
		world: world{blobs: 2, manifests: []manifest{image("M", 0, 1), image("N", 0, 1)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasBlob(1, 0)
			m.hasManifest(0, 0)
			m.isDue(0)
			m.blobIsDue(0, 1)
			return []*program{m.put(1, 0), m.deleteManifest(0), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "a batch is reviewed while one of it is deleted",
		world: world{blobs: 1, manifests: []manifest{image("M", 0), image("N", 0)}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(0)
			m.hasManifest(1)
			m.isDue(0, 1)
			return []*program{m.deleteManifest(0), m.headManifest(1), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "two use a blob that is reviewed",
		world: world{repositories: 2, blobs: 1, manifests: []manifest{image("M", 0), image("N", 0).in(1)}, tags: []int{0, 1}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0, 1)
			m.blobIsDue(0)
			return []*program{m.put(0, 0), m.put(1, 1), m.reviewBlobs(), m.reviewBlobs()}
		},
	},
	{
		name:    "two push the same new blob",
		world:   world{repositories: 2, blobs: 1, uploads: 2},
		crashes: true,
		setup: func(m *machine) []*program {
			m.uploading(0, 1)
			m.blobIsDue(0)
			return []*program{m.push(0, 0, 0, false), m.push(1, 1, 0, false), m.reviewBlobs(), m.sweep(0), m.reap()}
		},
	},
	{
		name:  "a subject is put again while it is deleted",
		world: world{blobs: 1, manifests: []manifest{image("S", 0), image("R", 0).of(0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(0)
			m.hasManifest(1)
			m.isDue(1)
			return []*program{m.put(0, 0), m.deleteManifest(0), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "two put the same manifest and move tags",
		world: world{blobs: 1, manifests: []manifest{image("M", 0), image("X", 0)}, tags: []int{0, 0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(1, 0, 1)
			return []*program{m.put(0, 0), m.put(0, 1), m.headManifest(1), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name: "a tag moves while its manifest is deleted and its blob unlinked",
		// The put holds the link and wants the tag, the deletion holds the tag and wants
		// the blob's queue row, unlinking holds that and wants the link.
		mayDeadlock: true,
		world:       world{blobs: 1, manifests: []manifest{image("M", 0), image("X", 0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(1, 0)
			return []*program{m.put(0, 0), m.deleteManifest(1), m.deleteBlob(0, 0), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "a referrer loses its tag while its subject arrives",
		world: world{blobs: 1, manifests: []manifest{image("S", 0), image("R", 0).of(0)}, tags: []int{0, 0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(1, 1)
			return []*program{m.put(0, 0), m.deleteTag(1), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "an index refers to its child as its subject",
		world: world{blobs: 1, manifests: []manifest{image("M", 0), index("I", 0).of(0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(0)
			m.hasManifest(1, 0)
			return []*program{m.deleteTag(0), m.reviewManifests(), m.reviewManifests(), m.reviewBlobs()}
		},
	},
	{
		name:  "one in a circle loses the last tag",
		world: world{manifests: []manifest{index("M"), index("I", 0).of(0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasManifest(0, 0)
			m.hasManifest(1)
			m.isDue(1)
			return []*program{m.deleteTag(0), m.headManifest(0), m.reviewManifests(), m.reviewManifests()}
		},
	},
	{
		name:  "one in a circle is tagged",
		world: world{manifests: []manifest{index("M"), index("J", 0), index("I", 1).of(0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasManifest(0)
			m.hasManifest(1)
			m.hasManifest(2)
			m.isDue(2)
			return []*program{m.put(1, 0), m.headManifest(0), m.reviewManifests(), m.reviewManifests()}
		},
	},
	{
		name:  "one in a circle is put into an index",
		world: world{manifests: []manifest{index("M"), index("I", 0).of(0), index("K", 0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasManifest(0)
			m.hasManifest(1)
			m.isDue(1)
			return []*program{m.put(2, 0), m.reviewManifests(), m.reviewManifests()}
		},
	},
	{
		name:  "a tag moves in a circle",
		world: world{manifests: []manifest{index("M"), index("J", 0), index("I", 1).of(0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasManifest(0)
			m.hasManifest(1, 0)
			m.hasManifest(2)
			m.isDue(2)
			return []*program{m.put(2, 0), m.deleteTag(0), m.reviewManifests(), m.reviewManifests()}
		},
	},
	{
		name:  "a circle is put",
		world: world{manifests: []manifest{index("M"), index("I", 0).of(0)}, tags: []int{0}},
		setup: func(m *machine) []*program {
			m.hasManifest(0)
			m.isDue(0)
			return []*program{m.put(1), m.put(0, 0), m.deleteTag(0), m.reviewManifests()}
		},
	},
	{
		name:  "an image is pushed beside another's deletion",
		world: world{blobs: 2, uploads: 3, manifests: []manifest{image("M", 0), image("N", 0, 1)}, tags: []int{0, 0}},
		long:  true,
		setup: func(m *machine) []*program {
			m.hasBlob(0, 0)
			m.hasManifest(0, 0)
			m.isDue(0)
			m.uploading(1)
			return []*program{m.headBlob(0, 0), m.push(1, 0, 1, false), m.put(1, 1), m.deleteManifest(0), m.reviewManifests(), m.reviewBlobs()}
		},
	},
}

// named returns a scenario.
func named(name string) scenario {
	i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
	if i < 0 {
		panic("no scenario " + name)
	}
	return scenarios[i]
}
