import { createFullEnrich, FULLENRICH } from './fullenrich.ts';
import { createHunter, HUNTER } from './hunter.ts';
import { createProspeo, PROSPEO } from './prospeo.ts';
import { createRocketReach, ROCKETREACH } from './rocketreach.ts';

/** The built-in vendors, in their default call order. The configuration can set another order. */
export const VENDORS = {
  rocketreach: { ...ROCKETREACH, create: createRocketReach },
  fullenrich: { ...FULLENRICH, create: createFullEnrich },
  prospeo: { ...PROSPEO, create: createProspeo },
  hunter: { ...HUNTER, create: createHunter },
} as const;

export type VendorId = keyof typeof VENDORS;
export const VENDOR_IDS = Object.keys(VENDORS) as VendorId[];
