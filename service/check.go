package service

import (
	"net/http"
	"strconv"

	"github.com/cilium/statedb/reconciler"

	"myelin/cluster"
)

// Check is a health check node port: it tells an external load balancer whether this node has endpoints of a Service
// with externalTrafficPolicy Local.
type Check struct {
	Service cluster.Key `json:"service"`
	// Port is open on every address of the node.
	Port uint16 `json:"port"`
	// LocalEndpoints is the number of ready endpoints on this node.
	LocalEndpoints int               `json:"localEndpoints"`
	Status         reconciler.Status `json:"status"`
}

// TableHeader names the columns of TableRow.
func (*Check) TableHeader() []string { return []string{"Service", "Port", "Endpoints"} }

// TableRow is the row as text.
func (c *Check) TableRow() []string {
	return []string{c.Service.String(), strconv.Itoa(int(c.Port)), strconv.Itoa(c.LocalEndpoints)}
}

// Answer is the HTTP status of the response.
func (c *Check) Answer() int {
	if c.LocalEndpoints == 0 {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

// check makes a Service's health check equal to its plan.
func (u *update) check(k cluster.Key, p *plan) {
	old, _, ok := u.Desired.Checks.Get(u.txn, CheckByService(k))
	if p == nil || p.service.HealthCheckNodePort == 0 {
		if ok {
			remove(u, u.Desired.Checks, old)
		}
		return
	}
	row := &Check{
		Service: k, Port: p.service.HealthCheckNodePort, LocalEndpoints: p.service.LocalEndpoints,
		Status: reconciler.StatusPending(),
	}
	if !ok || old.Port != row.Port || old.LocalEndpoints != row.LocalEndpoints {
		insert(u, u.Desired.Checks, row)
	}
}

// CheckStatus is the address of a row's status, as table.Register wants it.
func CheckStatus(c *Check) *reconciler.Status { return &c.Status }
