package agent

import (
	"net/http"

	"myelin/hubble/observer"
)

// newObserver returns Hubble's features.
func (a *agent) newObserver() *observer.Observer {
	return observer.New(a.Node, observer.Params{
		Version: a.version, Began: a.began, State: a.observed,
		Serve: func(name string, addresses []string, port uint16, handler http.Handler) {
			a.health.serve(name, addresses, port, handler)
		},
	})
}

// observed is what Hubble needs of other features.
func (a *agent) observed() observer.State {
	s := observer.State{
		Hub: a.datapath.hub, Names: a.names(), DNS: a.l7.NamesOf,
		Endpoints: a.endpoints.table, Addresses: a.network.node.Addresses, Identities: a.identities.all,
		Policies: a.policies.tables.Policies,
	}
	if e := a.policies.engine; e != nil {
		s.Rules, s.Realised = e.Rules, e.Realised
	}
	if a.services.services != nil {
		s.Frontends = a.services.services.Desired.Frontends
	}
	return s
}
