/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Types that neither a map nor a program refers to. */
#ifndef MYELIN_TYPES_H
#define MYELIN_TYPES_H

/* These declarations keep the types in the object's BTF, from which Go's constants are generated. */
const enum endpoint_flag *_endpoint_flag __attribute__((unused));
const enum endpoint_slot *_endpoint_slot __attribute__((unused));
const enum wire_flag *_wire_flag __attribute__((unused));
const enum wire_mark *_wire_mark __attribute__((unused));
const enum prefix_flag *_prefix_flag __attribute__((unused));
const enum flow_flag *_flow_flag __attribute__((unused));
const enum flow_seconds *_flow_seconds __attribute__((unused));
const enum path_action *_path_action __attribute__((unused));
const enum path_mark *_path_mark __attribute__((unused));
const enum event_type *_event_type __attribute__((unused));
const enum listen *_listen __attribute__((unused));
const enum event_flag *_event_flag __attribute__((unused));
const enum tunnel_mode *_tunnel_mode __attribute__((unused));
const enum outcome *_outcome __attribute__((unused));
const struct event *_event __attribute__((unused));
const enum backend_set_flag *_backend_set_flag __attribute__((unused));
const enum member_bits *_member_bits __attribute__((unused));
const enum frontend_flag *_frontend_flag __attribute__((unused));
const enum service_scope *_service_scope __attribute__((unused));
const enum socket_outcome *_socket_outcome __attribute__((unused));
const enum nat_entry_flag *_nat_entry_flag __attribute__((unused));
const enum share_kind *_share_kind __attribute__((unused));
const enum share_bound *_share_bound __attribute__((unused));
const enum path_flag *_path_flag __attribute__((unused));
const enum lb_dispatch *_lb_dispatch __attribute__((unused));
const enum probe_mark *_probe_mark __attribute__((unused));
const enum probe_way *_probe_way __attribute__((unused));
const enum lb_mode *_lb_mode __attribute__((unused));
const enum hook *_hook __attribute__((unused));
const enum policy_cut *_policy_cut __attribute__((unused));
const enum policy_direction *_policy_direction __attribute__((unused));
const enum policy_action *_policy_action __attribute__((unused));
const enum policy_absent *_policy_absent __attribute__((unused));
const enum policy_l7 *_policy_l7 __attribute__((unused));
const enum dns_bound *_dns_bound __attribute__((unused));
const enum proxy_socket *_proxy_socket __attribute__((unused));
const enum bandwidth_direction *_bandwidth_direction __attribute__((unused));

#endif
