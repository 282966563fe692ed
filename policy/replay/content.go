package replay

import (
	"net/url"
	"slices"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"
)

// contentOf is what was recorded of a flow beyond addresses and ports.
func contentOf(f *flowpb.Flow) (c Content) {
	if slices.Contains(f.GetDestination().GetLabels(), "reserved:world") {
		names := slices.Clone(f.GetDestinationNames())
		slices.Sort(names)
		c.Names = strings.Join(names, " ")
	}
	if d := f.GetL7().GetDns(); d != nil {
		c.DNS = strings.ToLower(strings.TrimSuffix(d.GetQuery(), "."))
	}
	h := f.GetL7().GetHttp()
	if u, err := url.Parse(h.GetUrl()); h != nil && err == nil {
		c.Host = u.Host
		if h.GetMethod() != "" {
			c.HTTP = h.GetMethod() + " " + u.RequestURI()
		}
	}
	return c
}

// recordsContent reports whether a flow of layer 7 is a request or a query, of which is known what it asks for.
func recordsContent(f *flowpb.Flow) bool {
	c := contentOf(f)
	return f.GetL7().GetType() == flowpb.L7FlowType_REQUEST && (c.HTTP != "" || c.Host != "" || c.DNS != "")
}
