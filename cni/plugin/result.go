package plugin

import (
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	apiv1 "myelin/api/v1"
)

// toResult converts what the agent answers to what the plugin prints.
func toResult(in *apiv1.CNIResult) (*types100.Result, error) {
	out := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	for _, i := range in.GetInterfaces() {
		out.Interfaces = append(out.Interfaces, &types100.Interface{
			Name: i.GetName(), Mac: i.GetMac(), Mtu: int(i.GetMtu()), Sandbox: i.GetSandbox(),
		})
	}
	for _, a := range in.GetAddresses() {
		ip, prefix, err := net.ParseCIDR(a.GetPrefix())
		if err != nil {
			return nil, fmt.Errorf("read agent's answer: %w", err)
		}
		prefix.IP = ip
		out.IPs = append(out.IPs, &types100.IPConfig{
			Interface: types100.Int(int(a.GetInterface())), Address: *prefix, Gateway: net.ParseIP(a.GetGateway()),
		})
	}
	for _, r := range in.GetRoutes() {
		_, prefix, err := net.ParseCIDR(r.GetPrefix())
		if err != nil {
			return nil, fmt.Errorf("read agent's answer: %w", err)
		}
		out.Routes = append(out.Routes, &types.Route{Dst: *prefix, GW: net.ParseIP(r.GetGateway())})
	}
	return out, nil
}

// fromResult is the inverse, for prevResult, in which JSON may have put null
// anywhere.
func fromResult(in *types100.Result) *apiv1.CNIResult {
	if in == nil {
		return nil
	}
	out := &apiv1.CNIResult{}
	for _, i := range in.Interfaces {
		if i == nil {
			i = &types100.Interface{} // addresses count on the indexes
		}
		out.Interfaces = append(out.Interfaces, &apiv1.CNIInterface{
			Name: i.Name, Mac: i.Mac, Mtu: uint32(max(i.Mtu, 0)), Sandbox: i.Sandbox,
		})
	}
	for _, a := range in.IPs {
		if a == nil {
			continue
		}
		address := &apiv1.CNIAddress{Prefix: a.Address.String()}
		if a.Interface != nil {
			address.Interface = uint32(max(*a.Interface, 0))
		}
		if a.Gateway != nil {
			address.Gateway = a.Gateway.String()
		}
		out.Addresses = append(out.Addresses, address)
	}
	for _, r := range in.Routes {
		if r == nil {
			continue
		}
		route := &apiv1.CNIRoute{Prefix: r.Dst.String()}
		if r.GW != nil {
			route.Gateway = r.GW.String()
		}
		out.Routes = append(out.Routes, route)
	}
	return out
}
