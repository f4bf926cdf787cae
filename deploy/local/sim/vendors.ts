import type { SimOptions } from './answer.ts';
import { createFullEnrichSim } from './fullenrich-sim.ts';
import { createHunterSim } from './hunter-sim.ts';
import { createNeverBounceSim } from './neverbounce-sim.ts';
import { createProspeoSim } from './prospeo-sim.ts';
import { createReacherSim } from './reacher-sim.ts';
import { createRegistrySim } from './registry-sim.ts';
import type { VendorSim } from './reply.ts';
import { createRocketReachSim } from './rocketreach-sim.ts';
import { createZeroBounceSim } from './zerobounce-sim.ts';

/**
 * All that is simulated, vendors in the order of the waterfall, then verifiers, then the NPI registry: how each is
 * made, and its path in the simulator, which is its id and what the base URL of its adapter ends with.
 */
const VENDORS = {
  rocketreach: { make: createRocketReachSim, base: '/rocketreach/api/v2' },
  fullenrich: { make: createFullEnrichSim, base: '/fullenrich/api/v2' },
  prospeo: { make: createProspeoSim, base: '/prospeo' },
  hunter: { make: createHunterSim, base: '/hunter/v2' },
  reacher: { make: ({ apiKey }: SimOptions) => createReacherSim(apiKey), base: '/reacher' },
  zerobounce: { make: ({ apiKey }: SimOptions) => createZeroBounceSim(apiKey), base: '/zerobounce' },
  neverbounce: { make: ({ apiKey }: SimOptions) => createNeverBounceSim(apiKey), base: '/neverbounce' },
  registry: { make: createRegistrySim, base: '/registry/api' },
} as const satisfies Record<string, { make(options: SimOptions): VendorSim; base: string }>;

export type SimulatedVendor = keyof typeof VENDORS;

export interface Mounted {
  readonly sim: VendorSim;
  readonly base: string;
}

/** All of them, each with a memory of its own. */
export function createVendors(options: SimOptions): readonly Mounted[] {
  return Object.values(VENDORS).map(({ make, base }) => ({ sim: make(options), base }));
}

/** @param origin such as http://127.0.0.1:8090 */
export function baseUrls(origin: string): Readonly<Record<SimulatedVendor, string>> {
  const urls = Object.entries(VENDORS).map(([id, { base }]) => [id, origin + base]);
  return Object.fromEntries(urls) as Record<SimulatedVendor, string>;
}
