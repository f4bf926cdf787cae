import { DNS_TABLE } from '../../deploy/local/dns.ts';

/** Domains for the checks' corners, beside those of simulated people; the local name server of this process knows them. */
export const CORNERS = {
  addressOnly: 'addressonly-sim.com',
  noMail: 'nomail-sim.com',
  broken: 'broken-sim.com',
} as const;

DNS_TABLE.set(CORNERS.addressOnly, { A: '192.0.2.25' });
DNS_TABLE.set(CORNERS.noMail, {});
DNS_TABLE.set(CORNERS.broken, 'servfail');
