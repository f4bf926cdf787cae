/** The contribution of the prefix 80840 to the Luhn sum. The prefix means "health, USA". */
const PREFIX_SUM = 24;

/**
 * Returns true if a text consists of 10 ASCII digits and the last one is a correct check digit. The
 * check digit is computed by the Luhn algorithm over the number with the prefix 80840 (45 CFR
 * 162.406; CMS, "NPI check digit"). The function does not check whether the NPI is assigned to a
 * provider.
 */
export function hasNpiCheckDigit(npi: string): boolean {
  if (!/^[0-9]{10}$/.test(npi)) return false;
  let sum = PREFIX_SUM;
  for (const [index, digit] of Array.from(npi, Number).entries()) {
    const weighted = index % 2 === 0 ? digit * 2 : digit;
    sum += weighted > 9 ? weighted - 9 : weighted;
  }
  return sum % 10 === 0;
}
