"""The draft doctor, `eagle31rt check`: would this draft load for this target, and does it draft well (--probe)?"""
