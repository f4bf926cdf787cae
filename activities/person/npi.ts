/** What the prefix 80840 (health, USA) adds to the Luhn sum of an NPI written without it. */
const PREFIX_SUM = 24;

/**
 * Whether a text is 10 ASCII digits of which the last is the NPI's check digit: Luhn over the
 * number with the prefix 80840 (45 CFR 162.406; CMS, "NPI check digit"). Says nothing about whether
 * the number is assigned.
 */
export function hasNpiCheckDigit(npi: string): boolean {
  if (!/^[0-9]{10}$/.test(npi)) return false;
  const sum = Array.from(npi, Number).reduce((total, digit, index) => {
    const weighted = index % 2 === 0 ? digit * 2 : digit;
    return total + (weighted > 9 ? weighted - 9 : weighted);
  }, PREFIX_SUM);
  return sum % 10 === 0;
}
