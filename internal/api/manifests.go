package api

import (
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/oci"
)

// Layer is a layer in Quay's format.
type Layer struct {
	Index     int        `json:"index"`
	Size      int64      `json:"compressed_size" doc:"Stored size in bytes; of a remote layer, the size that the manifest declares"`
	Declared  *int64     `json:"declared_size,omitempty" doc:"The size that the manifest declares, if the stored size differs"`
	IsRemote  bool       `json:"is_remote" doc:"The layer is stored elsewhere, not in this registry"`
	URLs      []string   `json:"urls" doc:"Where a remote layer is stored; null for others"`
	Command   []string   `json:"command" doc:"The build step that made the layer, if the configuration has it"`
	Comment   *string    `json:"comment"`
	Author    *string    `json:"author"`
	Digest    oci.Digest `json:"blob_digest"`
	CreatedAt *string    `json:"created_datetime" doc:"The time that the configuration has"`
	MediaType string     `json:"media_type"`
}

// ChildManifest is a manifest that an index lists.
type ChildManifest struct {
	Digest       oci.Digest `json:"digest"`
	MediaType    string     `json:"media_type"`
	ArtifactType string     `json:"artifact_type,omitempty"`
	Size         int64      `json:"size" doc:"Stored size of the manifest alone, in bytes"`
	Declared     *int64     `json:"declared_size,omitempty" doc:"The size that the manifest declares, if the stored size differs"`
	Platform     string     `json:"platform,omitempty" example:"linux/amd64"`
	TotalSize    *int64     `json:"total_size,omitempty" doc:"Bytes of the manifest, its configuration and its layers; of an index, the sum of this over its first 1000 manifests. Missing: the repository doesn't have the manifest, or it comes after the first 100"`
}

// ImageConfig is an image's configuration in answers.
type ImageConfig struct {
	Digest    oci.Digest `json:"digest"`
	MediaType string     `json:"media_type"`
	Size      int64      `json:"size" doc:"Bytes that are stored"`
	Declared  *int64     `json:"declared_size,omitempty" doc:"The size that the manifest declares, if the stored size differs"`
	Platform  string     `json:"platform,omitempty" example:"linux/arm64/v8"`
	Created   string     `json:"created,omitempty" doc:"When the image was built, according to its configuration"`
	Author    string     `json:"author,omitempty"`
	Content   any        `json:"config,omitempty" doc:"Entrypoint, environment, labels and so on, as in the configuration"`
}

// DescribedManifest is a manifest in Quay's format, with Purser's additional members.
type DescribedManifest struct {
	Digest          oci.Digest `json:"digest"`
	IsManifestList  bool       `json:"is_manifest_list"`
	ManifestData    string     `json:"manifest_data" doc:"The manifest as it was pushed"`
	ConfigMediaType *string    `json:"config_media_type" doc:"Null for an index"`
	Layers          []Layer    `json:"layers" doc:"Null for an index"`

	MediaType    string          `json:"media_type"`
	ArtifactType string          `json:"artifact_type,omitempty"`
	PushedAt     time.Time       `json:"pushed_at"`
	Size         int64           `json:"size" doc:"Bytes of the manifest, its configuration and its layers; of an index, the sum of this over all its manifests"`
	Config       *ImageConfig    `json:"config,omitempty"`
	Manifests    []ChildManifest `json:"manifests,omitempty" nullable:"false" doc:"The manifests that an index lists"`
	Subject      *oci.Digest     `json:"subject,omitempty" doc:"The manifest's subject: the manifest that it refers to"`

	SubjectSize     *int64 `json:"subject_size,omitempty" doc:"Stored size of the subject; if the subject isn't in the repository, the size that this manifest declares"`
	SubjectDeclared *int64 `json:"subject_declared_size,omitempty" doc:"The subject's size that this manifest declares, if the stored size differs"`

	SubjectMissing bool `json:"subject_missing,omitempty" doc:"The repository doesn't have the subject"`

	Referrers    catalog.Count `json:"referrers" doc:"Number of manifests whose subject this is, counted up to 1000"`
	Tags         []string      `json:"tags" nullable:"false" doc:"Up to 100 tags that point to it"`
	TagCount     catalog.Count `json:"tags_count" doc:"Counted up to 1000"`
	Indexes      []oci.Digest  `json:"indexes,omitempty" nullable:"false" doc:"Up to 100 indexes that list it"`
	LastPulledAt *time.Time    `json:"last_pulled_at" doc:"Null: not pulled since pulls are counted, or the statistics can't be read now"`
	PullCount    *int64        `json:"pull_count" doc:"Null if last_pulled_at is"`
}

// ListedReferrer is a manifest whose subject another manifest is, such as a signature of an image.
type ListedReferrer struct {
	Digest       oci.Digest        `json:"digest"`
	MediaType    string            `json:"media_type"`
	ArtifactType string            `json:"artifact_type,omitempty"`
	Size         int64             `json:"size" doc:"Stored size of the manifest alone, in bytes"`
	TotalSize    *int64            `json:"total_size,omitempty" doc:"Bytes of the manifest, its configuration and its layers; of an index, the sum of this over its first 1000 manifests. Missing: it was deleted while the list was made"`
	Annotations  map[string]string `json:"annotations,omitempty" nullable:"false" doc:"Missing if they are longer than 64 KiB"`
}

// ReferrerList is a page of the list of a manifest's referrers.
type ReferrerList struct {
	Referrers []ListedReferrer `json:"referrers" nullable:"false" doc:"In the order in which they were pushed"`
	NextPage  string           `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// UntaggedManifest is a manifest to which no tag points.
type UntaggedManifest struct {
	Digest         oci.Digest  `json:"digest"`
	IsManifestList bool        `json:"is_manifest_list"`
	MediaType      string      `json:"media_type"`
	ArtifactType   string      `json:"artifact_type,omitempty"`
	Platforms      []string    `json:"platforms,omitempty" nullable:"false" doc:"For an index of up to 64 KiB" example:"linux/amd64"`
	Size           int64       `json:"size" doc:"Bytes of the manifest, its configuration and its layers; of an index, the sum of this over its first 1000 manifests"`
	PushedAt       time.Time   `json:"pushed_at"`
	Index          *oci.Digest `json:"index,omitempty" doc:"One of the indexes that list it, so that it can't be deleted. Missing: none does"`
	Subject        *oci.Digest `json:"subject,omitempty" doc:"The manifest that it signs, lists or describes. Missing: it has no subject, or the repository hasn't got that"`
}

// UntaggedList is a page of untagged manifests.
type UntaggedList struct {
	Manifests []UntaggedManifest `json:"manifests" nullable:"false" doc:"In the order of their digests"`
	NextPage  string             `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l UntaggedList) Entries() ([]UntaggedManifest, string) { return l.Manifests, l.NextPage }

// ImageManifests are the manifests that an image's id stands for.
type ImageManifests struct {
	Digests []oci.Digest `json:"digests" nullable:"false" doc:"Up to 100 manifests"`
}

// ShortManifest is a manifest whose digest begins as it was asked for.
type ShortManifest struct {
	Digest         oci.Digest `json:"digest"`
	MediaType      string     `json:"media_type"`
	ArtifactType   string     `json:"artifact_type,omitempty"`
	IsManifestList bool       `json:"is_manifest_list"`
	Size           int64      `json:"size" doc:"Bytes of the manifest, its configuration and its layers; of an index, the sum of this over its first 1000 manifests"`
	Tags           []string   `json:"tags" nullable:"false" doc:"Up to 3 of the tags that point to it"`
}

// ShortManifests are the manifests whose digests begin as it was asked for.
type ShortManifests struct {
	Manifests []ShortManifest `json:"manifests" nullable:"false" doc:"Up to 10 manifests, in the order of their digests"`
	More      bool            `json:"more,omitempty" doc:"There are more than 10"`
}

// NewShortManifests makes the answer of FindShortDigest.
func NewShortManifests(list []browse.ShortManifest, more bool) ShortManifests {
	out := ShortManifests{Manifests: make([]ShortManifest, len(list)), More: more}
	for i, m := range list {
		out.Manifests[i] = ShortManifest{
			Digest: m.Digest, MediaType: m.MediaType, ArtifactType: m.ArtifactType, IsManifestList: m.IsIndex, Size: m.Size, Tags: m.Tags,
		}
	}
	return out
}

// Inputs of the operations on manifests.
type (
	// ManifestItem is also the part of other inputs that names a manifest.
	ManifestItem struct {
		InRepository
		Digest oci.Digest `path:"digest" doc:"Digest of the manifest"`
	}
	ReferrerQuery struct {
		ManifestItem
		ArtifactType string `query:"artifact_type" maxLength:"255" doc:"Only referrers of this artifact type" example:"application/spdx+json"`
		NextPage     string `query:"next_page" doc:"The next_page of the page before"`
		Limit        int    `query:"limit" minimum:"1" default:"50" doc:"Most entries of a page. More than 100 counts as 100"`
	}
	ShortDigestItem struct {
		InRepository
		Beginning string `path:"beginning" doc:"The first hexadecimal digits of the digest, at least 6, with or without sha256: before them" example:"sha256:3f2a1b"`
	}
	UntaggedQuery struct {
		InRepository
		NextPage string `query:"next_page" doc:"The next_page of the page before"`
		Limit    int    `query:"limit" minimum:"1" default:"50" doc:"Most entries of a page. More than 100 counts as 100"`
	}
	ManifestDeletion struct {
		ManifestItem
		Untagged bool `query:"untagged" doc:"Only if no tag points to it: otherwise 409"`
		Override bool `query:"override_holds" doc:"Delete it even if it is deployed"`
	}
	ImageItem struct {
		InRepository
		Image oci.Digest `path:"image" doc:"The image's id: the digest of its configuration"`
	}
)

// The operations on manifests.
var (
	GetManifest = Operation[ManifestItem, DescribedManifest]{
		ID: "getRepoManifest", Method: http.MethodGet, Path: "/repository/{repository}/manifest/{digest}", Tag: "manifest", Access: auth.Pull,
		Summary: "Describe a manifest", Errors: []int{http.StatusNotFound},
		Description: "The configuration of an image is read from the store, up to 1 MiB of it.",
	}
	ListReferrers = Operation[ReferrerQuery, ReferrerList]{
		ID: "listManifestReferrers", Method: http.MethodGet, Path: "/repository/{repository}/manifest/{digest}/referrers", Tag: "manifest", Access: auth.Pull,
		Summary: "List the referrers of a manifest", Errors: []int{http.StatusNotFound},
		Description: "Lists the manifests whose subject this is: signatures, lists of components, attestations and so on. They can be in the " +
			"repository before their subject is, or without it. A page ends earlier than after limit entries if their annotations are long.",
	}
	FindShortDigest = Operation[ShortDigestItem, ShortManifests]{
		ID: "findShortDigest", Method: http.MethodGet, Path: "/repository/{repository}/digest/{beginning}", Tag: "manifest", Access: auth.Pull,
		Summary: "Find manifests by the beginning of their digests", Errors: []int{http.StatusNotFound},
		Description: "The answer is empty if the repository has no such manifest. Of several, the client must ask which is meant, and then name it by its whole digest.",
	}
	FindImage = Operation[ImageItem, ImageManifests]{
		ID: "findImage", Method: http.MethodGet, Path: "/repository/{repository}/image/{image}", Tag: "manifest", Access: auth.Pull,
		Summary: "Find manifests by an image's id", Errors: []int{http.StatusNotFound},
		Description: "Docker, containerd and CRI-O know images on a machine by the digest of their configuration, or of their manifest. " +
			"The answer is empty if the repository has no such manifest.",
	}
	ListUntagged = Operation[UntaggedQuery, UntaggedList]{
		ID: "listUntaggedManifests", Method: http.MethodGet, Path: "/repository/{repository}/untagged", Tag: "manifest", Access: auth.Pull,
		Summary: "List the manifests without tags", Errors: []int{http.StatusNotFound},
		Description: "Lists the manifests to which no tag points. An index may list them, or they refer to a subject; the others are deleted by garbage " +
			"collection when it reviews them. A page examines 2000 manifests at most, so it may be short, even empty, and have a next one.",
	}
	DeleteManifest = Operation[ManifestDeletion, None]{
		ID: "deleteRepoManifest", Method: http.MethodDelete, Path: "/repository/{repository}/manifest/{digest}", Tag: "manifest", Access: auth.Delete,
		Summary: "Delete a manifest", Status: http.StatusNoContent, Errors: []int{http.StatusNotFound, http.StatusConflict},
		Description: "Deletes a manifest at once, with its tags, unless untagged is given. It can't be restored, only pushed again. A manifest that an index lists stays, as " +
			"does one whose tag is protected, or that a reporter holds unless override_holds is given: 409.",
	}
)
